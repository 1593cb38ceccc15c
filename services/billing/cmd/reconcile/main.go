// Command reconcile compares all customers with the payment provider and mends
// what differs. Its environment is app.Config.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/billing/app"
)

func main() { os.Exit(service.Command(app.NewReconcile)) }
