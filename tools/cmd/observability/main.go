// Command observability writes the rules, dashboards and runbooks of the suite from package
// observability; docs/observability.md describes them.
package main

import (
	"fmt"
	"os"

	"waitlist.internal/tools/internal/observability"
)

//go:generate go run . ../../..

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: observability ROOT")
		os.Exit(2)
	}
	if err := observability.Write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "observability:", err)
		os.Exit(1)
	}
}
