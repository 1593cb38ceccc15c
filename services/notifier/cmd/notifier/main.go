// Command notifier runs the notifier service. Its environment is app.Config.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/notifier/app"
)

func main() { os.Exit(service.Main(app.New)) }
