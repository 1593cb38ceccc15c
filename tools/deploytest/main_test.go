package deploytest

import (
	"testing"

	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
