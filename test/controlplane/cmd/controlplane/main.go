// Command controlplane is how the Makefile and shell scripts get at the control plane binaries:
//
//	controlplane assets    builds etcd and kube-apiserver if need be, prints their directory
//	controlplane kubectl   builds kubectl if need be, prints its path
//
// Progress goes to standard error, the answer alone to standard output.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

const usage = "usage: controlplane assets|kubectl"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if len(os.Args) != 2 {
		fail(2, usage)
	}
	answer, err := "", error(nil)
	switch os.Args[1] {
	case "assets":
		answer, err = controlplane.Assets(ctx, os.Stderr)
	case "kubectl":
		answer, err = controlplane.Kubectl(ctx, os.Stderr)
	default:
		fail(2, usage)
	}
	if err != nil {
		fail(1, "controlplane: "+err.Error())
	}
	fmt.Println(answer)
}

func fail(code int, message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(code)
}
