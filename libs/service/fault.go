//go:build fault

package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/kafka"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// A build with the tag fault is a bad version of a service, for tests of the release process. The variable FAULT chooses
// what is wrong:
//
//	errors=PERCENT   that share of the requests is answered with 500
//	slow=DURATION    each request takes so much longer
//	crash            the process ends at its start
//	crash=REQUESTS   the process ends when it has got so many requests
//	poison           no event can be handled
//
// Without FAULT, the build is a good one.
func fault() (kind, value string) {
	kind, value, _ = strings.Cut(os.Getenv("FAULT"), "=")
	return kind, value
}

func (r *Runtime) breakServer() {
	kind, value := fault()
	if kind == "crash" && value == "" {
		fmt.Fprintln(os.Stderr, "FAULT=crash")
		os.Exit(1)
	}
	if r.Engine == nil {
		return
	}
	number, _ := strconv.ParseFloat(value, 64)
	pause, _ := time.ParseDuration(value)
	var seen atomic.Int64
	r.Engine.Use(func(c *gin.Context) {
		switch {
		case kind == "errors" && 100*rand.Float64() < number:
			c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"error_code": "INTERNAL", "message": "This is a bad build."})
		case kind == "slow":
			time.Sleep(pause)
		case kind == "crash" && seen.Add(1) >= int64(number):
			os.Exit(1)
		}
	})
}

func (r *Runtime) breakConsumer(c *kafka.ConsumerConfig) {
	if kind, _ := fault(); kind != "poison" {
		return
	}
	bad := errors.New("this is a bad build")
	c.Wants = nil
	c.Handler = func(context.Context, pgx.Tx, *eventv1.Event) error { return bad }
	if c.Batch != nil {
		c.Batch = func(context.Context, pgx.Tx, []*eventv1.Event) error { return bad }
	}
}
