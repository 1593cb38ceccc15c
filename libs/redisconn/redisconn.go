// Package redisconn opens Redis clients that give up quickly: every caller has a
// fallback without Redis.
package redisconn

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"waitlist.internal/libs/tlsroots"
)

// connLife and connLifeJitter bound how long a connection stays with a server that its name
// no longer stands for: 5 to 15 minutes, so that not all are renewed at once. A server that
// has turned into a replica is left at the first write.
const (
	connLife       = 10 * time.Minute
	connLifeJitter = 5 * time.Minute
)

// Options bounds what one command may cost.
type Options struct {
	// Timeout bounds dialling, writing and reading, each; so does the context of a
	// command.
	Timeout time.Duration
	// Retries is how often a failed command is repeated, at once: a connection that Redis
	// closed is replaced, and callers would rather turn to their fallback than wait.
	Retries int
	// PoolSize is the number of connections to each node; 0 means the driver's
	// default, ten per CPU.
	PoolSize int
	// CAFile has the PEM certificates of the authorities for rediss://; "" means the
	// system's.
	CAFile string
}

// Open returns a client for the URL redis://user:password@host:port/db, or rediss://
// for TLS. A URL with more nodes, ?addr=host2:port&addr=host3:port, stands for a
// Redis Cluster. The client connects on first use.
func Open(rawURL string, o Options) (redis.UniversalClient, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The cause quotes the URL, which has the password.
		return nil, fmt.Errorf("the Redis URL is not valid: write it like redis://host:6379/0")
	}
	retries := o.Retries
	if retries == 0 {
		retries = -1 // go-redis: never
	}
	if o.CAFile != "" && u.Scheme != "rediss" {
		return nil, fmt.Errorf("a CA file requires a rediss:// URL, but the Redis URL begins with %s://", u.Scheme)
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
		c.MinRetryBackoff, c.MaxRetryBackoff = -1, -1
		c.ConnMaxLifetime, c.ConnMaxLifetimeJitter = connLife, connLifeJitter
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
	c.MinRetryBackoff, c.MaxRetryBackoff = -1, -1
	c.ConnMaxLifetime, c.ConnMaxLifetimeJitter = connLife, connLifeJitter
	c.ContextTimeoutEnabled, c.DisableIdentity = true, true
	c.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(c), nil
}

// Ready returns an error unless Redis answers and takes writes, which a replica refuses.
func Ready(ctx context.Context, c redis.UniversalClient) error {
	return c.Unlink(ctx, "ready").Err()
}
