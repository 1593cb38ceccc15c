package smslog_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"waitlist.internal/services/messaging"
	"waitlist.internal/services/messaging/smslog"
)

func TestTheLogHasNeitherNumberNorText(t *testing.T) {
	var b bytes.Buffer
	p := smslog.Provider{Log: slog.New(slog.NewTextHandler(&b, nil))}
	if err := p.SendSMS(t.Context(), messaging.SMS{ID: "the-id", To: "+4915112345678", Text: "a secret"}); err != nil {
		t.Fatal(err)
	}
	if line := b.String(); !strings.Contains(line, "the-id") || strings.Contains(line, "4915112345678") || strings.Contains(line, "secret") {
		t.Error(line)
	}
}
