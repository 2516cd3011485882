package forwardproxies

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/process"
)

const (
	username = "crawler"
	password = "pa-ss_w.o3"
)

// fetch gets a page through a proxy, or says why not.
func fetch(t *testing.T, name string, s *Server, user *url.Userinfo, site *origin.Server, page string) error {
	t.Helper()
	through := &url.URL{Scheme: Protocol(name), Host: s.Addr, User: user}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		Proxy: http.ProxyURL(through), DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: site.CertPool(), MinVersion: tls.VersionTLS12},
	}}
	_, err := origin.Fetch(t.Context(), client, page)
	return err
}

func TestEachCarriesRequestsAndAsksForThePasswordItWasGiven(t *testing.T) {
	site := origin.Start(t)
	for _, name := range ForTest(t) {
		t.Run(name, func(t *testing.T) {
			open := Start(t, name, Options{})
			guarded := Start(t, name, Options{Username: username, Password: password})
			for _, page := range []string{site.URL, site.PlainURL} {
				if err := fetch(t, name, open, nil, site, page); err != nil {
					t.Errorf("open to all: %v", err)
				}
				if err := fetch(t, name, guarded, url.UserPassword(username, password), site, page); err != nil {
					t.Errorf("with the password: %v", err)
				}
				if fetch(t, name, guarded, url.UserPassword(username, "wrong"), site, page) == nil {
					t.Errorf("another password is as good: %s", page)
				}
				if fetch(t, name, guarded, nil, site, page) == nil {
					t.Errorf("none is needed: %s", page)
				}
			}
		})
	}
}

func TestARuleRefusesTunnelsAlone(t *testing.T) {
	site := origin.Start(t)
	for _, name := range ForTest(t) {
		if Protocol(name) != "http" {
			continue
		}
		s := Start(t, name, Options{DenyConnect: true})
		if err := fetch(t, name, s, nil, site, site.URL); err == nil || !strings.Contains(err.Error(), "Forbidden") && !strings.Contains(err.Error(), "Access violation") {
			t.Errorf("%s, a tunnel: %v", name, err)
		}
		if err := fetch(t, name, s, nil, site, site.PlainURL); err != nil {
			t.Errorf("%s, a request: %v", name, err)
		}
	}
}

// Others on the machine's networks must not find an open proxy while tests run.
func TestNoneIsReachableFromElsewhere(t *testing.T) {
	for _, name := range ForTest(t) {
		s := Start(t, name, Options{Username: username, Password: password})
		addresses := bound(t, s.process.PID())
		if len(addresses) == 0 {
			t.Errorf("%s has no socket: is that the right process?", name)
		}
		for _, a := range addresses {
			if !strings.HasPrefix(a, "0100007F:") {
				t.Errorf("%s has a socket at %s", name, a)
			}
		}
	}
}

// bound are the local addresses, as the kernel writes them, of a process's TCP and UDP
// sockets.
func bound(t *testing.T, pid int) []string {
	t.Helper()
	var own []string
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil {
			if inode, is := strings.CutPrefix(to, "socket:["); is {
				own = append(own, strings.TrimSuffix(inode, "]"))
			}
		}
	}
	var addresses []string
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "raw6"} {
		file, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue // a machine without IPv6
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			// number, local, remote, state, queues, timer, retransmits, uid, timeout, inode
			if fields := strings.Fields(lines.Text()); len(fields) > 9 && slices.Contains(own, fields[9]) {
				addresses = append(addresses, fields[1])
			}
		}
	}
	return addresses
}

func TestNothingIsLeftOfOne(t *testing.T) {
	for _, name := range ForTest(t) {
		var s *Server
		var pids []int
		t.Run(name, func(t *testing.T) {
			s = Start(t, name, Options{Username: username, Password: password})
			if pids = family(t, s.process.PID()); !slices.Contains(pids, s.process.PID()) || name == Squid && len(pids) < 2 {
				t.Errorf("%v are not all of its processes", pids)
			}
		})
		if !process.WaitGone(20*time.Second, pids...) {
			t.Errorf("%s: some of %v still run", name, pids)
		}
		if _, err := os.Stat(s.dir); err == nil {
			t.Errorf("%s left its files", name)
		}
		if left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/forwardproxies%dx*", os.Getpid())); len(left) > 0 {
			t.Errorf("%s left %v", name, left)
		}
	}
}

// family are a process and its children.
func family(t *testing.T, pid int) []int {
	t.Helper()
	found := []int{pid}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range stats {
		content, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		// "PID (name) STATE PARENT …", where the name may hold blanks and parentheses.
		text := string(content)
		fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(strings.Fields(text)[0])
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, child)
		}
	}
	return found
}

func TestWhatIsRequiredIsKnown(t *testing.T) {
	if _, err := requiredBy("squid,nginx"); err == nil || !strings.Contains(err.Error(), `"nginx"`) {
		t.Errorf("error %v", err)
	}
	if names, err := requiredBy("squid,tinyproxy"); err != nil || !slices.Equal(names, []string{Squid, Tinyproxy}) {
		t.Errorf("%v, %v", names, err)
	}
}

func TestSquidIsFoundByUsersWithoutRootsPath(t *testing.T) {
	if !slices.Contains(ForTest(t), Squid) {
		return
	}
	t.Setenv("PATH", t.TempDir())
	if found, missing := Installed(); !slices.Contains(found, Squid) {
		t.Errorf("found %v, missing %v", found, missing)
	}
}
