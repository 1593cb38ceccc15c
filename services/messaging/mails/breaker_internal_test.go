package mails

import (
	"fmt"
	"testing"
	"time"
)

// Only recipients in a row count: a provider that accepts mails in between does not refuse us.
func TestDoubtsThatAreNotInARow(t *testing.T) {
	t.Parallel()
	b := NewProviderBreaker(time.Minute)
	for i := range 3 {
		for j := range doubters - 1 {
			if b.Doubt(fmt.Sprint(i, j)) || b.Remaining() > 0 {
				t.Errorf("mail %d after %d accepted ones: the provider counts as away", j, i)
			}
		}
		b.Accepted()
	}
	for i := range doubters {
		if away := b.Doubt(fmt.Sprint(i)); away != (i == doubters-1) || away != (b.Remaining() > 0) {
			t.Errorf("mail %d in a row: away %t, pause %s", i, away, b.Remaining())
		}
	}
}
