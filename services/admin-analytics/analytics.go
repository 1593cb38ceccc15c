package adminanalytics

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"
)

const (
	// maxOrigins is how many values of a field analytics show by name.
	maxOrigins = 1000
	// OtherOrigins stands for all further values. A value of this name counts among
	// them.
	OtherOrigins = "(other)"
)

// Count is what one event adds to a waitlist's sums.
type Count struct {
	EventID, WaitlistID string
	// Day is the first moment of a UTC day.
	Day             time.Time
	Views           int64
	Signups         int64
	ReferralSignups int64
	// Number is the highest number of the counted signups; 0 for views.
	Number int64
	// Source, Medium and Campaign are the signup's origin; "": unknown.
	Source, Medium, Campaign string
}

// DayOf returns the first moment of t's UTC day.
func DayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// Day has the sums of a waitlist's UTC day.
type Day struct {
	Day             time.Time
	Views           int64
	Signups         int64
	ReferralSignups int64
}

// Conversion returns signups divided by views, with four decimals: 0 without views,
// at most 1.
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

// Origins are the values of each field, the most frequent first. Of two values with
// the same count, the one that reached it first comes first.
type Origins struct{ Sources, Mediums, Campaigns []Origin }

// Store reads the sums.
type Store interface {
	// Days returns the days from first on that have a count, in any order.
	Days(ctx context.Context, waitlistID string, first time.Time) ([]Day, error)
	// Origins returns the first limit values of each field by name, then the others as
	// OtherOrigins.
	Origins(ctx context.Context, waitlistID string, limit int) (Origins, error)
}

// Analytics answers owners' queries about a waitlist.
type Analytics struct {
	store Store
	now   func() time.Time
}

// NewAnalytics returns the analytics of store.
func NewAnalytics(store Store, now func() time.Time) *Analytics { return &Analytics{store, now} }

// Series returns a waitlist's last days, today last. Days without counts are
// included.
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
		// Counts from a clock that is ahead may belong to tomorrow; they appear then.
		if i := int(d.Day.Sub(first) / (24 * time.Hour)); i >= 0 && i < days {
			series[i] = d
		}
	}
	return series, nil
}

// Origins returns the origins of a waitlist's signups. It sorts OtherOrigins by its
// count like any other value, after values with the same count.
func (a *Analytics) Origins(ctx context.Context, waitlistID string) (Origins, error) {
	o, err := a.store.Origins(ctx, waitlistID, maxOrigins)
	for _, field := range [][]Origin{o.Sources, o.Mediums, o.Campaigns} {
		slices.SortStableFunc(field, func(x, y Origin) int { return cmp.Compare(y.Count, x.Count) })
	}
	return o, err
}
