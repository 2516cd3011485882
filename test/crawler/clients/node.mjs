// Fetch a page through the proxy of a lease, with fetch and an undici dispatcher.
//
//     node node.mjs PAGE [SITE_CA_FILE] < lease.json
//         prints {"status": 200, "body": "base64"}, or {"error": "…", "credentials": false},
//         where credentials says that it is those that the proxy refuses
//     node node.mjs probe
//         prints {"protocols": ["http", …]}
//
// The packages are those of package.json one folder up. undici stays at the line that
// Debian 12's Node 18 can run, and fetch-socks at the last release that takes it: undici has
// a SOCKS5 agent of its own from 7.23 on, and calls it experimental.

import { readFileSync } from 'node:fs'

import { socksDispatcher } from 'fetch-socks'
import { fetch, ProxyAgent } from 'undici'

// The host of a URL without the brackets of an IPv6 address. undici would verify it with them.
const bare = (host) => host.replace(/^\[|\]$/g, '')

function dispatcherFor (lease, siteCA) {
  const url = new URL(lease.proxy.url)
  if (url.protocol === 'socks5h:') {
    const proxy = { type: 5, host: bare(url.hostname), port: Number(url.port) }
    if (url.username) {
      proxy.userId = decodeURIComponent(url.username)
      proxy.password = decodeURIComponent(url.password)
    }
    return socksDispatcher(proxy, { connect: { ca: siteCA } })
  }
  const { serverName, ca } = lease.tls ?? {}
  return new ProxyAgent({
    uri: lease.proxy.url,
    proxyTls: { ca, servername: serverName || bare(url.hostname) },
    requestTls: { ca: siteCA }
  })
}

async function get (page, siteCAFile) {
  const lease = JSON.parse(readFileSync(0, 'utf8'))
  const siteCA = siteCAFile === undefined ? undefined : readFileSync(siteCAFile, 'utf8')
  const dispatcher = dispatcherFor(lease, siteCA)
  try {
    const response = await fetch(page, { dispatcher, redirect: 'manual' })
    return { status: response.status, body: Buffer.from(await response.arrayBuffer()).toString('base64') }
  } finally {
    await dispatcher.destroy()
  }
}

// The types and codes of an error and of its causes, and the words of the innermost, but not
// those of errors about values: they quote what they could not read, which may be the password.
function told (error) {
  const types = []
  let last = error
  for (let e = error; e instanceof Error; e = e.cause) {
    types.push(typeof e.code === 'string' ? `${e.name} ${e.code}` : e.name)
    last = e
  }
  const quotes = last instanceof TypeError || last instanceof SyntaxError || last instanceof URIError
  return {
    error: types.join('/') + (quotes ? '' : `: ${last.message}`),
    // Neither package has a code for it.
    credentials: /^Proxy response \(407\)|^Socks5 Authentication failed|no accepted authentication type/.test(last.message)
  }
}

const [page, siteCAFile] = process.argv.slice(2)
const answer = page === 'probe' ? { protocols: ['http', 'https', 'socks5'] } : await get(page, siteCAFile).catch(told)
process.stdout.write(JSON.stringify(answer))
