package deploy

import (
	"testing"

	"waitlist.internal/libs/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
