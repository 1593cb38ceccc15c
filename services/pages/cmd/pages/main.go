// Command pages runs the pages service. It has no database: there is nothing to migrate.
// app.Config lists its environment.
package main

import (
	"os"
	"runtime/debug"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/pages/app"
)

// gcPercent is Go's GOGC. So little of the heap is in use that with the default of 100 the collector would run many times a
// second. GOGC overrides it, and the container's limit bounds the heap.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(service.Main(app.New, nil))
}
