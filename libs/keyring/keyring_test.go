package keyring

import (
	"encoding/base64"
	"testing"
)

func TestParse(t *testing.T) {
	b := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, tt := range []struct {
		name, s  string
		min, max int
		ids      []string
	}{
		{"one", "a:" + b(32), 32, 0, []string{"a"}},
		{"two, with blanks", "a:" + b(32) + ", b:" + b(40), 32, 0, []string{"a", "b"}},
		{"empty", "", 1, 0, nil},
		{"no secret", "a", 1, 0, nil},
		{"no id", ":" + b(32), 1, 0, nil},
		{"dot in id", "a.b:" + b(32), 1, 0, nil},
		{"no base64", "a:%%", 1, 0, nil},
		{"short", "a:" + b(31), 32, 0, nil},
		{"long", "a:" + b(33), 32, 32, nil},
		{"twice", "a:" + b(32) + ",a:" + b(32), 32, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			keys, err := Parse(tt.s, tt.min, tt.max)
			if (err != nil) != (tt.ids == nil) || len(keys) != len(tt.ids) {
				t.Fatalf("%v, %v", keys, err)
			}
			for i, k := range keys {
				if k.ID != tt.ids[i] || len(k.Secret) < tt.min {
					t.Errorf("key %d: %+v", i, k)
				}
			}
		})
	}
}
