package deploy

import (
	"testing"

	"go.uber.org/goleak"

	"waitlist.internal/libs/testenv"
)

// Connections that toxiproxy cuts leave their goroutines waiting for a reader that has gone.
func TestMain(m *testing.M) {
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/stream.(*ChanWriter).Write"))
}
