// Command reseal seals the channels' URLs again with the first key of SEAL_KEYS. It needs
// POSTGRES_URL and SEAL_KEYS.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/signup/app"
)

func main() { os.Exit(service.Command(app.NewReseal)) }
