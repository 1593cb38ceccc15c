package mailtext_test

import (
	"encoding/json"
	"strings"
	"testing"

	"waitlist.internal/libs/body"
	"waitlist.internal/libs/mailtext"
)

func TestFields(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		read func(*body.Object, string) (string, bool)
		text string
		want string // the start of the message
	}{
		{"subject", mailtext.Subject, strings.Repeat("ä", 998), ""},
		{"subject", mailtext.Subject, strings.Repeat("ä", 999), "This must have at most 998 characters."},
		{"subject", mailtext.Subject, " \t", "This field is required."},
		{"subject", mailtext.Subject, "a\r\nb", "This must not contain line breaks"},
		{"subject", mailtext.Subject, "a\u2028b", "This must not contain line breaks"},
		{"body", mailtext.Body, "", ""},
		{"body", mailtext.Body, strings.Repeat("\n", 512<<10), ""},
		{"body", mailtext.Body, strings.Repeat("ä", 256<<10) + "x", "This must have at most 524288 bytes."},
	} {
		raw, err := json.Marshal(map[string]string{"field": tt.text})
		if err != nil {
			t.Fatal(err)
		}
		in, err := body.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := tt.read(in, "field")
		if err := in.Err(); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %.20q: %v, want %q", tt.name, tt.text, err, tt.want)
		} else if err == nil && got != tt.text {
			t.Errorf("%s %.20q became %.20q", tt.name, tt.text, got)
		}
		if _, present := tt.read(in, "absent"); present {
			t.Errorf("an absent %s is present", tt.name)
		}
	}
}
