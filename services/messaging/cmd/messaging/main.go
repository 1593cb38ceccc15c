// Command messaging runs the messaging service. With the argument migrate, it updates the schema and
// creates missing topics instead. app.Config lists its environment.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/messaging/app"
)

func main() { os.Exit(service.Main(app.New, app.Migrate)) }
