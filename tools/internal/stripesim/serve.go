package stripesim

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Main runs the program stripesim until ctx ends. Flags take their defaults from the environment.
func Main(ctx context.Context, args []string, getenv func(string) string, out io.Writer) error {
	or := func(name, def string) string { return cmp.Or(getenv(name), def) }
	var cfg Config
	flags := flag.NewFlagSet("stripesim", flag.ContinueOnError)
	flags.SetOutput(out)
	addr := flags.String("addr", or("STRIPESIM_ADDR", "127.0.0.1:12111"), "listen address of the API and the pages (STRIPESIM_ADDR)")
	flags.StringVar(&cfg.PublicURL, "url", getenv("STRIPESIM_URL"), "base URL of the pages; empty: the host of the API call (STRIPESIM_URL)")
	flags.StringVar(&cfg.Key, "key", getenv("STRIPESIM_KEY"), "accepted secret key; empty: any (STRIPESIM_KEY)")
	flags.StringVar(&cfg.WebhookURL, "webhook", getenv("STRIPESIM_WEBHOOK"), "URL that receives events; empty: none (STRIPESIM_WEBHOOK)")
	flags.StringVar(&cfg.WebhookSecret, "secret", getenv("STRIPESIM_SECRET"), "secret that signs events (STRIPESIM_SECRET)")
	flags.StringVar(&cfg.File, "data", getenv("STRIPESIM_DATA"), "file that stores the state; empty: in memory (STRIPESIM_DATA)")
	currency := flags.String("currency", or("STRIPESIM_CURRENCY", "usd"),
		"currency of the six prices: usd, or jpy, which has no smaller unit (STRIPESIM_CURRENCY)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	cfg.Prices = Prices(*currency, "price_", [3]int64{300, 1000, 5000})
	s, err := New(cfg)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", *addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Fprintln(out, "http://"+l.Addr().String())
	return s.Serve(ctx, l)
}

// Serve runs the simulator on listener l until ctx ends. It then waits up to 5 s for requests and deliveries to end.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ran := make(chan error, 1)
	served := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	go func() {
		defer cancel()
		served <- server.Serve(l)
	}()
	<-ctx.Done()
	err := <-ran // ends hanging calls as well
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer done()
	err = errors.Join(err, server.Shutdown(stop), server.Close())
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("serve: %w", end))
	}
	return err
}
