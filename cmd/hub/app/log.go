package app

import (
	"github.com/go-logr/logr"
	uberzap "go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// maxVerbosity is the most that --zap-log-level can ask for. Beyond it the
// libraries write what must stay out of logs: client-go, from 8 on, the bodies
// of requests and answers, Secrets included. And at 5 controller-runtime writes
// out a queue without holding its lock.
const maxVerbosity = 4

// newLogger is as the flags say, within maxVerbosity.
func newLogger(o *zap.Options) logr.Logger {
	return zap.New(zap.UseFlagOptions(o), func(o *zap.Options) {
		var wanted zapcore.LevelEnabler = zapcore.InfoLevel
		if o.Development {
			wanted = zapcore.DebugLevel
		}
		if o.Level != nil {
			wanted = o.Level
		}
		o.Level = uberzap.LevelEnablerFunc(func(level zapcore.Level) bool { return level >= -maxVerbosity && wanted.Enabled(level) })
	})
}
