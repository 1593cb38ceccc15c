package devservers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// StripeMock is the payment provider's own mock: it judges requests by the
// official description of the API, and keeps no state.
type StripeMock struct {
	// URL is the API's address.
	URL string

	child *child
}

// StripeMockOptions says what StartStripeMock builds and where the mock logs.
type StripeMockOptions struct {
	// Module is the folder of the Go module that pins the mock as a tool. The mock is
	// built there.
	Module string
	// Dir takes the mock's log.
	Dir string
}

// StartStripeMock builds and starts the mock and returns when it answers.
func StartStripeMock(ctx context.Context, o StripeMockOptions) (*StripeMock, error) {
	build := exec.CommandContext(ctx, "go", "tool", "-n", "stripe-mock")
	build.Dir = o.Module
	build.Env = append(os.Environ(), "GOWORK=off")
	binary, err := build.Output()
	if err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, e.Stderr)
		}
		return nil, fmt.Errorf("build stripe-mock: %w", err)
	}
	var addrs [2]string
	for i := range addrs {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	// Without -https-addr it would also listen on every interface.
	cmd := exec.Command(strings.TrimSpace(string(binary)), "-http-addr", addrs[0], "-https-addr", addrs[1])
	cmd.SysProcAttr = childAttr(syscall.SIGTERM)
	c, err := startChild("stripe-mock", cmd, filepath.Join(o.Dir, "stripe-mock.log"))
	if err != nil {
		return nil, err
	}
	m := &StripeMock{URL: "http://" + addrs[0], child: c}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	err = c.ready(ctx, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+"/v1/prices", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer sk_test_123")
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %d", res.StatusCode)
		}
		return nil
	})
	if err != nil {
		c.kill()
		return nil, err
	}
	return m, nil
}

// Stop stops the mock.
func (m *StripeMock) Stop() error { return m.child.stop(syscall.SIGTERM) }
