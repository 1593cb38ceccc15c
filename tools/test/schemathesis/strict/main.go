// Command strict prints the OpenAPI document with every rule that the suite keeps.
package main

import (
	"fmt"
	"os"

	"waitlist.internal/tools/test/e2e"
)

func main() {
	document, err := e2e.StrictDocument()
	if err == nil {
		_, err = os.Stdout.Write(document)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
