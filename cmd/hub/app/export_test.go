package app

import "github.com/proxyfleet/proxy-operator/cmd/hub/app/leadership"

// Elected gives f what knows whether the hub leads, before it does anything.
func (o *Options) Elected(f func(*leadership.Leadership)) { o.elected = f }
