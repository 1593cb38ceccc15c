// Command messaging runs the messaging service alone.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/messaging/app"
)

func main() { os.Exit(service.Main(app.New)) }
