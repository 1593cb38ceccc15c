// Command reconcile compares all customers with the payment provider and repairs
// differences. app.Config lists its environment.
package main

import (
	"os"

	"waitlist.internal/libs/service"
	"waitlist.internal/services/billing/app"
)

func main() { os.Exit(service.Command(app.NewReconcile)) }
