package billing

import (
	"math/big"
	"strings"

	"github.com/bojanz/currency"
)

// Money is an amount in the smallest unit in which the provider counts it.
type Money struct {
	Amount int64
	// Currency is an ISO 4217 code in any case.
	Currency string
}

// digits is how many decimals the provider counts a currency in. Its list is not
// ISO's: the Malagasy ariary has none there, while the Icelandic króna and the
// Ugandan shilling, which have none in life, are counted in hundredths.
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

// String writes the amount as in English: $1,000.00, -$5.00, ¥1,000.
func (m Money) String() string {
	code := strings.ToUpper(m.Currency)
	n := digits(code)
	value := new(big.Rat).SetFrac(big.NewInt(m.Amount), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil))
	amount, err := currency.NewAmount(value.FloatString(n), code)
	if err != nil {
		return value.FloatString(n) + " " + code // no currency of this world
	}
	f := currency.NewFormatter(currency.NewLocale("en"))
	if n == 0 {
		f.MinDigits = 0 // decimals that nobody can pay
	}
	return f.Format(amount)
}
