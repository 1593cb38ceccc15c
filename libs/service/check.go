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
	// checkFor is how long an answer may take to become the one that is wanted.
	checkFor   = 30 * time.Second
	checkPause = 500 * time.Millisecond
)

// checkAnswers asks each of answers, as 200=http://host/path, until the status is the
// one before the equals sign: what a chart's test needs, in the image that is
// there anyway.
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

// statusOf makes one request, straight to where the URL says.
func statusOf(ctx context.Context, url string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil) //nolint:gosec // whoever starts the program says where
	if err != nil {
		return 0, err //nolint:wrapcheck // checkAnswers says which
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0, err //nolint:wrapcheck // checkAnswers says which
	}
	return res.StatusCode, res.Body.Close()
}
