// Package redisconn opens Redis clients that give up soon: whoever asks Redis
// here has another way to its answer.
package redisconn

import (
	"fmt"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"waitlist.internal/libs/tlsroots"
)

// Options bounds what one command may cost.
type Options struct {
	// Timeout bounds dialling, writing and reading, each; the context of a
	// command bounds them further.
	Timeout time.Duration
	// Retries is how often a command that failed is repeated; 0: never.
	Retries int
	// PoolSize is the number of connections to each node; 0: the driver's
	// default, ten for each CPU.
	PoolSize int
	// CAFile has the authorities of a rediss:// server in PEM; "": the machine's.
	CAFile string
}

// Open returns a client for a URL redis://user:password@host:port/db, or rediss://
// for TLS. With further nodes in it, ?addr=host2:port&addr=host3:port, it is a client of a
// Redis Cluster. It connects when it is first used.
func Open(rawURL string, o Options) (redis.UniversalClient, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The cause would quote the URL, and so the password.
		return nil, fmt.Errorf("parse Redis URL: not a URL")
	}
	retries := o.Retries
	if retries == 0 {
		retries = -1 // go-redis' word for never
	}
	if o.CAFile != "" && u.Scheme != "rediss" {
		return nil, fmt.Errorf("a file of authorities is for rediss://, the Redis URL has %s://", u.Scheme)
	}
	roots, err := tlsroots.Read(o.CAFile)
	if err != nil {
		return nil, err
	}
	if u.Query().Has("addr") {
		c, err := redis.ParseClusterURL(rawURL)
		if err != nil {
			return nil, fmt.Errorf("parse Redis URL: %w", err)
		}
		if c.TLSConfig != nil {
			c.TLSConfig.RootCAs = roots
		}
		c.DialTimeout, c.ReadTimeout, c.WriteTimeout, c.PoolTimeout = o.Timeout, o.Timeout, o.Timeout, o.Timeout
		c.MaxRetries, c.DialerRetries, c.PoolSize = retries, 1, o.PoolSize
		c.ContextTimeoutEnabled, c.DisableIdentity = true, true
		c.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		return redis.NewClusterClient(c), nil
	}
	c, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("parse Redis URL: %w", err)
	}
	if c.TLSConfig != nil {
		c.TLSConfig.RootCAs = roots
	}
	c.DialTimeout, c.ReadTimeout, c.WriteTimeout, c.PoolTimeout = o.Timeout, o.Timeout, o.Timeout, o.Timeout
	c.MaxRetries, c.DialerRetries, c.PoolSize = retries, 1, o.PoolSize
	c.ContextTimeoutEnabled, c.DisableIdentity = true, true
	c.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(c), nil
}
