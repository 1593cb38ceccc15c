// Command messaging runs the messaging service; with the argument migrate it brings its
// schema and topics up to date and ends. Its environment is app.Config.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/messaging/app"
)

func main() { os.Exit(service.Main(app.New, app.Migrate)) }
