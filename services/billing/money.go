package billing

import (
	"math/big"
	"strings"

	"github.com/bojanz/currency"
)

// Money is an amount in the provider's smallest unit of the currency.
type Money struct {
	Amount int64
	// Currency is an ISO 4217 code, in upper or lower case.
	Currency string
}

// digits returns the number of decimals that the provider gives a currency. Its list
// differs from ISO 4217: the Malagasy ariary has none, and the Icelandic króna and
// the Ugandan shilling have two.
func digits(code string) int {
	switch code {
	case "BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF":
		return 0
	case "BHD", "JOD", "KWD", "OMR", "TND":
		return 3
	default:
		return 2
	}
}

// String formats the amount in English: $1,000.00, -$5.00, ¥1,000.
func (m Money) String() string {
	code := strings.ToUpper(m.Currency)
	n := digits(code)
	value := new(big.Rat).SetFrac(big.NewInt(m.Amount), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil))
	amount, err := currency.NewAmount(value.FloatString(n), code)
	if err != nil {
		return value.FloatString(n) + " " + code // not a known currency
	}
	f := currency.NewFormatter(currency.NewLocale("en"))
	if n == 0 {
		f.MinDigits = 0
	}
	return f.Format(amount)
}
