package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"waitlist.internal/libs/loop"
)

const (
	// checkFor is how long checkAnswers waits for the wanted statuses.
	checkFor   = 30 * time.Second
	checkPause = 500 * time.Millisecond
)

// checkAnswers requests the URL of each answer, such as 200=http://host/path, until the
// response has the wanted status. Helm tests use it, so that they need no other image.
func checkAnswers(ctx context.Context, answers []string) error {
	ctx, cancel := context.WithTimeout(ctx, checkFor)
	defer cancel()
	for _, answer := range answers {
		status, url, _ := strings.Cut(answer, "=")
		want, err := strconv.Atoi(status)
		if err != nil || url == "" {
			return fmt.Errorf("check %q: want STATUS=URL", answer)
		}
		for {
			got, err := statusOf(ctx, url)
			if err == nil && got == want {
				fmt.Printf("%s: %d\n", url, got)
				break
			}
			if !loop.Wait(ctx, checkPause) {
				return fmt.Errorf("check %s: status %d, want %d: %w", url, got, want, errors.Join(err, ctx.Err()))
			}
		}
	}
	return nil
}

// statusOf makes one request. It uses no proxy and follows no redirect.
func statusOf(ctx context.Context, url string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil) //nolint:gosec // the URL comes from the command line
	if err != nil {
		return 0, err // checkAnswers adds the URL
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0, err // checkAnswers adds the URL
	}
	return res.StatusCode, res.Body.Close()
}
