package app_test

import (
	"log/slog"
	"testing"
)

func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewJSONHandler(t.Output(), nil))
}
