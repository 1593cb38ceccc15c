package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// formerShare is what a version must reach of the one before it.
const formerShare = .95

// versions measures B1, B3 and B6 against the former program, all services running on both sides: has a change made a
// request dearer? It also says how much processor time a request takes, which other load on the machine disturbs less.
func (b *bench) versions(ctx context.Context) (err error) {
	sides, stop, err := b.launches(ctx, "former", 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	settle := func(ctx context.Context) error { return b.followed(ctx, sides) }
	signers := map[*launch]*generator{}
	for _, l := range sides {
		signers[l] = &generator{addr: l.addr}
	}
	type side = func(*launch) func(context.Context, time.Duration) (sample, error)
	join := func(conns int) side {
		return func(l *launch) func(context.Context, time.Duration) (sample, error) {
			gen, lists := signers[l], []*list{l.list}
			return func(ctx context.Context, d time.Duration) (sample, error) { return gen.signUp(ctx, lists, conns, d) }
		}
	}
	for _, r := range []struct {
		id, what string
		side     side
	}{
		{"B1", fmt.Sprintf("Signups a second into one hot waitlist over %d connections", b.conns), join(b.conns)},
		{"B3", "Signups a second, one after the other on one connection", join(1)},
		{"B6", fmt.Sprintf("Requests a second for a form's config over %d connections", configConns), func(l *launch) func(
			context.Context, time.Duration) (sample, error) {
			request := []byte("GET /v1/public/waitlists/" + l.list.id + "/config HTTP/1.1\r\nHost: bench\r\n\r\n")
			return func(ctx context.Context, d time.Duration) (sample, error) {
				return repeatRequest(ctx, l.addr, request, configConns, d)
			}
		}},
	} {
		var spent [2][]time.Duration
		turn := func(i int) func(context.Context, time.Duration) (sample, error) {
			run := r.side(sides[i])
			return func(ctx context.Context, d time.Duration) (sample, error) {
				before, err := sides[i].srv.cpu()
				if err != nil {
					return sample{}, err
				}
				s, err := run(ctx, d)
				if err != nil {
					return s, err
				}
				after, err := sides[i].srv.cpu()
				spent[i] = append(spent[i], (after-before)/time.Duration(max(len(s.latencies), 1)))
				return s, err
			}
		}
		end := b.sideProfiles(ctx, r.id, sides)
		pairs, err := b.turns(ctx, r.id, settle, turn(0), turn(1), b.slice)
		end()
		if err != nil {
			return err
		}
		for i := range spent {
			spent[i] = slices.Sorted(slices.Values(spent[i][1:])) // without the warm-up
		}
		ours, theirs, ratio := of(pairs, rate)
		b.say("%s: a request takes %v of a processor, formerly %v", r.id, spent[0][b.pairs/2], spent[1][b.pairs/2])
		b.add(row{
			id: r.id + " former", goal: fmt.Sprintf("≥ %.2f ×", formerShare), ratio: ratio, met: ratio >= formerShare,
			what: r.what + ", all services running, against the former program.",
			ours: fmt.Sprintf("%.0f/s", ours), theirs: fmt.Sprintf("%.0f/s", theirs),
		})
	}
	return nil
}

// sideProfiles is profiles for each side of a row.
func (b *bench) sideProfiles(ctx context.Context, id string, sides []*launch) (stop func()) {
	var stops []func()
	for _, l := range sides {
		stops = append(stops, b.profiles(ctx, l.srv, id+"-"+l.name+"-"))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}
