// Command signup runs the signup service alone.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/signup/app"
)

func main() { os.Exit(service.Main(app.New)) }
