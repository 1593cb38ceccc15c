// Command pages runs the pages service. It has no database: there is nothing to migrate.
// app.Config lists its environment.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/pages/app"
)

func main() { os.Exit(service.Main(app.New, nil)) }
