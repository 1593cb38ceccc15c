// Command account runs the account service alone.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/account/app"
)

func main() { os.Exit(service.Main(app.New)) }
