package adminanalytics

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"
)

// TopReferrers is how many of them analytics show.
const TopReferrers = 10

const (
	// maxOrigins is how many values of a field are shown by name.
	maxOrigins = 1000
	// OtherOrigins stands for the values beyond those. A value that is called so
	// is counted among them.
	OtherOrigins = "(other)"
	// defaultRange is used where no range is given.
	defaultRange = "30d"
)

// ParseRange returns the days that a range in the contract's words has, and the
// range, which is the default where it is empty; false where there is no such
// range.
func ParseRange(s string) (word string, days int, ok bool) {
	if s == "" {
		s = defaultRange
	}
	switch s {
	case "7d":
		return s, 7, true
	case "30d":
		return s, 30, true
	case "90d":
		return s, 90, true
	default:
		return s, 0, false
	}
}

// Count is what one event adds to a waitlist's sums.
type Count struct {
	WaitlistID string
	// Day is the first moment of a UTC day.
	Day             time.Time
	Views           int64
	Signups         int64
	ReferralSignups int64
	// Number is the highest number of the signups that are counted; 0 for views.
	Number int64
	// Where they come from; empty: not known.
	Source, Medium, Campaign string
}

// DayOf returns the first moment of t's UTC day.
func DayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// Day is one UTC day of a waitlist.
type Day struct {
	Day             time.Time
	Views           int64
	Signups         int64
	ReferralSignups int64
}

// Conversion is signups by views: 0 without views, at most 1, with four
// decimals.
func (d Day) Conversion() float64 {
	if d.Views == 0 {
		return 0
	}
	return min(1, math.Round(1e4*float64(d.Signups)/float64(d.Views))/1e4)
}

// Origin is a value of a UTM field with the number of signups that have it.
type Origin struct {
	Value string
	Count int64
}

// Origins are the values of each field, most frequent first; of equal ones the
// one that got there first.
type Origins struct{ Sources, Mediums, Campaigns []Origin }

// Store reads the sums.
type Store interface {
	// Days returns the days from first on that have a count, in no order.
	Days(ctx context.Context, waitlistID string, first time.Time) ([]Day, error)
	// Origins returns the first limit values of each field by name and the rest
	// as OtherOrigins, last.
	Origins(ctx context.Context, waitlistID string, limit int) (Origins, error)
}

// Analytics answers what an owner asks about a waitlist.
type Analytics struct {
	store Store
	now   func() time.Time
}

// NewAnalytics returns the analytics of store.
func NewAnalytics(store Store, now func() time.Time) *Analytics { return &Analytics{store, now} }

// Series returns the last days of a waitlist, each of them, the present one
// last.
func (a *Analytics) Series(ctx context.Context, waitlistID string, days int) ([]Day, error) {
	first := DayOf(a.now()).AddDate(0, 0, 1-days)
	counted, err := a.store.Days(ctx, waitlistID, first)
	if err != nil {
		return nil, err
	}
	series := make([]Day, days)
	for i := range series {
		series[i].Day = first.AddDate(0, 0, i)
	}
	for _, d := range counted {
		// What comes from a clock that is ahead shows tomorrow.
		if i := int(d.Day.Sub(first) / (24 * time.Hour)); i >= 0 && i < days {
			series[i] = d
		}
	}
	return series, nil
}

// Origins returns where a waitlist's signups come from. OtherOrigins stands where
// its count puts it, behind values with the same count.
func (a *Analytics) Origins(ctx context.Context, waitlistID string) (Origins, error) {
	o, err := a.store.Origins(ctx, waitlistID, maxOrigins)
	for _, field := range [][]Origin{o.Sources, o.Mediums, o.Campaigns} {
		slices.SortStableFunc(field, func(x, y Origin) int { return cmp.Compare(y.Count, x.Count) })
	}
	return o, err
}
