package forwardproxies

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// tinyproxyText is what a username or password in tinyproxy's configuration may be.
var tinyproxyText = regexp.MustCompile(`^[-A-Za-z0-9._]+$`)

func tinyproxy(dir string, port int, o Options) ([]string, error) {
	text := fmt.Sprintf("Listen 127.0.0.1\nPort %d\nTimeout 600\nMaxClients 200\n", port)
	if o.Username != "" {
		if !tinyproxyText.MatchString(o.Username) || !tinyproxyText.MatchString(o.Password) {
			return nil, errors.New("tinyproxy: its configuration has no way to write this username or password")
		}
		text += fmt.Sprintf("BasicAuth %s %s\n", o.Username, o.Password)
	}
	if o.DenyConnect {
		text += "ConnectPort 0\n" // no port that there is
	}
	file := filepath.Join(dir, "tinyproxy.conf")
	return []string{"-d", "-c", file}, os.WriteFile(file, []byte(text), 0o600)
}

// squidConfig keeps squid from caching, logging to files, looking up names (the address
// is for the socket that it would do so by) and lingering at its end. The descriptors are
// limited since it reserves memory for each that there could be.
const squidConfig = `http_port 127.0.0.1:%d
udp_incoming_address 127.0.0.1
dns_nameservers 127.0.0.1
icp_port 0
pinger_enable off
pid_filename none
coredump_dir none
netdb_filename none
cache deny all
cache_mem 0
memory_cache_shared off
access_log none
cache_store_log none
cache_log /dev/null
visible_hostname forwardproxies
max_filedescriptors 1024
shutdown_lifetime 0
`

func squid(dir string, port int, o Options) ([]string, error) {
	text := fmt.Sprintf(squidConfig, port)
	if os.Geteuid() == 0 {
		text += "cache_effective_user proxy\n" // it refuses to stay root
	}
	if o.Username != "" {
		file := filepath.Join(dir, "passwords")
		sum := md5.Sum([]byte(o.Password)) // one of the forms that the program takes
		if err := readable(file, o.Username+":"+hex.EncodeToString(sum[:])+"\n"); err != nil {
			return nil, err
		}
		text += "auth_param basic program " + squidLogin + " " + file + "\n" +
			"auth_param basic children 1 startup=1\n" +
			"acl known proxy_auth REQUIRED\nhttp_access deny !known\n"
	}
	if o.DenyConnect {
		text += "acl tunnel method CONNECT\nhttp_access deny tunnel\n"
	}
	text += "http_access allow all\n"
	file := filepath.Join(dir, "squid.conf")
	// In the foreground, with warnings on standard error. By the name it tells its shared
	// memory from that of others.
	name := fmt.Sprintf("forwardproxies%dx%d", os.Getpid(), port)
	return []string{"-N", "-d", "1", "-n", name, "-f", file}, readable(file, text)
}

// readable writes a file that squid can read as another user, too, whatever the umask.
func readable(file, text string) error {
	return errors.Join(os.WriteFile(file, []byte(text), 0o644), os.Chmod(file, 0o644))
}

func microsocks(_ string, port int, o Options) ([]string, error) {
	if o.DenyConnect {
		return nil, errors.New("microsocks has no rules by which to refuse")
	}
	args := []string{"-i", "127.0.0.1", "-p", strconv.Itoa(port)}
	if o.Username != "" {
		args = append(args, "-u", o.Username, "-P", o.Password)
	}
	return args, nil
}
