package stripesim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Price is a recurring price that exists from the start.
type Price struct {
	// ID identifies the price. Product names its product, whose id is prod_ and the name in lower case.
	ID, Product string
	// Currency is the ISO code in lower case; Amount is in the smallest unit: cents, or yen.
	Currency string
	Amount   int64
	// Interval is month or year.
	Interval string
}

// DefaultPrices returns the prices of the product's plans in US dollars: price_basic_monthly, price_basic_yearly and so on.
func DefaultPrices() []Price {
	return Prices("usd", "price_", [3]int64{300, 1000, 5000})
}

// Prices returns the six prices of a currency: basic, advanced and pro, monthly as given and yearly at ten times the monthly
// amount. Their ids are prefix + basic_monthly and so on.
func Prices(currency, prefix string, monthly [3]int64) []Price {
	var out []Price
	for i, name := range []string{"Basic", "Advanced", "Pro"} {
		id := prefix + strings.ToLower(name)
		out = append(
			out,
			Price{ID: id + "_monthly", Product: name, Currency: currency, Amount: monthly[i], Interval: "month"},
			Price{ID: id + "_yearly", Product: name, Currency: currency, Amount: 10 * monthly[i], Interval: "year"},
		)
	}
	return out
}

// seedPrices adds the configured prices that do not exist yet. An existing price with another amount stays unchanged because
// subscriptions use it.
func (s *Server) seedPrices() error {
	now := s.now()
	for _, p := range s.cfg.Prices {
		if p.ID == "" || p.Product == "" || len(p.Currency) != 3 || p.Amount < 0 || !slices.Contains([]string{"month", "year"}, p.Interval) {
			return fmt.Errorf("price %q needs an id, a product, a currency of three letters, an amount of at least 0,"+
				" and an interval: month or year", p.ID)
		}
		prod := "prod_" + strings.ToLower(p.Product)
		if _, ok := s.state.Products.byID[prod]; !ok {
			s.state.Products.add(&product{
				ID: prod, Object: "product", Active: true, Created: now, Updated: now, Name: p.Product,
				Type: "service", Metadata: map[string]string{},
			})
		}
		if _, ok := s.state.Prices.byID[p.ID]; ok {
			continue
		}
		s.state.Prices.add(&price{
			ID: p.ID, Object: "price", Active: true, BillingScheme: "per_unit", Created: now,
			Currency: strings.ToLower(p.Currency), Metadata: map[string]string{}, Product: ref(prod),
			Recurring:   recurring{Interval: p.Interval, IntervalCount: 1, UsageType: "licensed"},
			TaxBehavior: "unspecified", Type: "recurring", UnitAmount: p.Amount, UnitDecimal: strconv.FormatInt(p.Amount, 10),
		})
	}
	return nil
}

func (s *Server) priceRoutes() []route {
	return []route{
		{"GET /v1/prices", pageParams + " active currency product type lookup_keys recurring", s.listPrices},
		{"GET /v1/prices/{id}", "", func(rq *request) (any, error) { return s.price(rq.id, "id") }},
		{"GET /v1/products", pageParams + " active ids", s.listProducts},
		{"GET /v1/products/{id}", "", func(rq *request) (any, error) {
			p, ok := s.state.Products.byID[rq.id]
			if !ok {
				return nil, noSuch("product", rq.id, "id")
			}
			return p, nil
		}},
	}
}

func (s *Server) price(id, param string) (*price, error) {
	p, ok := s.state.Prices.byID[id]
	if !ok {
		return nil, noSuch("price", id, param)
	}
	return p, nil
}

func (s *Server) listPrices(rq *request) (any, error) {
	act := rq.form["active"]
	return page(rq, &s.state.Prices, func(p *price) bool {
		return (act == "" || act == strconv.FormatBool(p.Active)) &&
			(rq.form["currency"] == "" || rq.form["currency"] == p.Currency) &&
			(rq.form["product"] == "" || rq.form["product"] == string(p.Product))
	})
}

func (s *Server) listProducts(rq *request) (any, error) {
	act, ids := rq.form["active"], rq.all("ids")
	return page(rq, &s.state.Products, func(p *product) bool {
		return (act == "" || act == strconv.FormatBool(p.Active)) && (len(ids) == 0 || slices.Contains(ids, p.ID))
	})
}
