// Command billing runs the billing service. Its environment is app.Config.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/billing/app"
)

func main() { os.Exit(service.Main(app.New)) }
