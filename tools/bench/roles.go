package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"waitlist.internal/libs/devservers"
)

// Roles that this program also plays in separate processes, so that the scheduler of the load's client does not run them.
const (
	roleKafka  = "role-kafka" // directory
	roleProxy  = "role-proxy" // target, delay
	roleSMTP   = "role-smtp"
	roleBare   = "role-bare"   // Postgres, Redis, file
	rolePage   = "role-page"   // file
	roleRouter = "role-router" // address, path=address…
)

// playRole plays the role that args name until standard input ends. It reports whether args name one.
func playRole(ctx context.Context, args []string) (bool, error) {
	if len(args) == 0 {
		return false, nil
	}
	switch args[0] {
	case roleKafka:
		k, err := devservers.StartKafka(ctx, devservers.KafkaOptions{Dir: args[1]})
		if err != nil {
			return true, err
		}
		fmt.Println(k.Brokers[0])
		_, _ = io.Copy(io.Discard, os.Stdin)
		return true, k.Stop()
	case roleBare:
		return true, bareHandler(ctx, args[1], args[2], args[3])
	case rolePage:
		return true, barePage(ctx, args[1])
	case roleRouter:
		return true, router(ctx, args[1], args[2:])
	case roleSMTP:
		return true, smtpSink(ctx)
	case roleProxy:
		delay, err := time.ParseDuration(args[2])
		if err != nil {
			return true, fmt.Errorf("parse the delay: %w", err)
		}
		return true, proxy(ctx, args[1], delay)
	}
	return false, nil
}

// proxy forwards TCP connections to target and delays everything that comes back by delay: a round trip takes delay longer
// without loss of bandwidth.
func proxy(ctx context.Context, target string, delay time.Duration) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close()
	}()
	for {
		in, err := l.Accept()
		if err != nil {
			return nil //nolint:nilerr // closed above
		}
		out, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
		if err != nil {
			_ = in.Close()
			continue
		}
		var half sync.Once
		closeBoth := func() { half.Do(func() { _ = in.Close(); _ = out.Close() }) }
		go func() { defer closeBoth(); _, _ = io.Copy(out, in) }()
		go func() { defer closeBoth(); delayed(in, out, delay) }()
	}
}

type piece struct {
	bytes []byte
	due   time.Time
}

func delayed(to io.Writer, from io.Reader, delay time.Duration) {
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if n > 0 {
				pieces <- piece{b[:n], time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for p := range pieces { // read to the end, so that the reader does not block
		if broken {
			continue
		}
		<-time.After(time.Until(p.due))
		_, err := to.Write(p.bytes)
		broken = err != nil
	}
}
