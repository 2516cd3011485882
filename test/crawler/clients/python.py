"""Fetch a page through the proxy of a lease, with requests.

    python.py PAGE [SITE_CA_FILE] < lease.json
        prints {"status": 200, "body": "base64"}, or {"error": "…", "credentials": false},
        where credentials says that it is those that the proxy refuses
    python.py probe
        prints {"protocols": ["http", …]}: what this interpreter has the packages for
"""

import base64
import importlib.util
import json
import ssl
import sys
import urllib.parse

import requests
import requests.adapters
import urllib3

TIMEOUT_SECONDS = 30


class ProxyContext(ssl.SSLContext):
    """How the proxy, not the site, is verified: by name, whatever host its URL has.

    urllib3 2 has proxy_assert_hostname for this. Debian 12's 1.26 does not, and it gives no
    name at all for an IP address; this works with both, and asks the proxy for that name.
    """

    name = None  # until it is complete

    def wrap_socket(self, *args, **kwargs):
        kwargs["server_hostname"] = self.name
        return super().wrap_socket(*args, **kwargs)

    def load_verify_locations(self, *args, **kwargs):
        # urllib3 2 adds the site's CAs, who may not vouch for the proxy.
        if self.name is None:
            super().load_verify_locations(*args, **kwargs)


class ProxyTLSAdapter(requests.adapters.HTTPAdapter):
    def __init__(self, context):
        self.context = context
        super().__init__()

    def proxy_manager_for(self, proxy, **kwargs):
        return super().proxy_manager_for(proxy, proxy_ssl_context=self.context, **kwargs)


def proxy_context(host, tls):
    context = ProxyContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.get("ca"):
        context.load_verify_locations(cadata=tls["ca"])
    else:
        context.load_default_certs()
    context.name = tls.get("serverName") or host
    return context


def fetch(lease, page, site_ca):
    proxy = lease["proxy"]["url"]
    session = requests.Session()
    session.trust_env = False  # proxies and CAs are those of the lease
    parsed = urllib.parse.urlsplit(proxy)
    if parsed.scheme == "https":
        context = proxy_context(parsed.hostname, lease.get("tls") or {})
        session.mount("https://", ProxyTLSAdapter(context))
    return session.get(
        page,
        proxies={"https": proxy},
        verify=site_ca or True,
        allow_redirects=False,
        timeout=TIMEOUT_SECONDS,
    )


def chain(error):
    """The error and what it was raised for, outermost first."""
    found = []
    while isinstance(error, BaseException) and error not in found:
        found.append(error)
        inner = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
        error = next((e for e in inner if isinstance(e, BaseException)), None)
    return found


def told(error):
    """What may be told of an error.

    The types, and the words of the innermost if they come from the network: those of a
    ValueError or of requests quote what they could not read, which may be the password.
    """
    errors = chain(error)
    types = "/".join(type(e).__name__ for e in errors)
    last = errors[-1]
    quotes_nothing = isinstance(last, (OSError, urllib3.exceptions.HTTPError)) and not isinstance(
        last, (requests.RequestException, urllib3.exceptions.LocationParseError)
    )
    return {
        "error": f"{types}: {last}" if quotes_nothing else types,
        # http.client raises a bare OSError for what a CONNECT is answered with.
        "credentials": any(type(e).__name__ == "SOCKS5AuthError" for e in errors)
        or str(last).startswith("Tunnel connection failed: 407"),
    }


def protocols():
    able = ["http"]
    if importlib.util.find_spec("urllib3.util.ssltransport"):  # since 1.26: TLS in TLS
        able.append("https")
    if importlib.util.find_spec("socks"):
        able.append("socks5")
    return able


def main(page, site_ca=None):
    if page == "probe":
        return {"protocols": protocols()}
    try:
        response = fetch(json.load(sys.stdin), page, site_ca)
        return {"status": response.status_code, "body": base64.b64encode(response.content).decode()}
    except Exception as error:  # pylint: disable=broad-except
        return told(error)


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
