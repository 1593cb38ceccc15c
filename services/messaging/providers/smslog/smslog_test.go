package smslog_test

import (
	"bytes"
	"encoding/base64"
	"log/slog"
	"strings"
	"testing"

	"waitlist.internal/libs/token"
	"waitlist.internal/services/messaging/mails"
	"waitlist.internal/services/messaging/providers/smslog"
)

func TestTheLogHasNeitherNumberNorText(t *testing.T) {
	ring, err := token.ParseRing("k:" + base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	p := smslog.Provider{Log: slog.New(slog.NewTextHandler(&b, nil)), Keys: ring}
	if err := p.SendSMS(t.Context(), mails.SMS{ID: "the-id", To: "+4915112345678", Text: "a secret"}); err != nil {
		t.Fatal(err)
	}
	if line := b.String(); !strings.Contains(line, "the-id") || strings.Contains(line, "4915112345678") || strings.Contains(line, "secret") {
		t.Error(line)
	}
}
