package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/loop"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
)

const (
	requestTimeout = 10 * time.Second
	maxBytes       = 4 << 20
	// leaderWait bounds the wait for a partition's leader; leaderPause is the pause
	// between two requests.
	leaderWait  = 10 * time.Second
	leaderPause = 200 * time.Millisecond
	// piece is the most events that one call of next gets.
	piece = 1000
)

// Log reads the signups topic from its beginning, independently of its consumers. It
// implements adminanalytics.ViewLog.
type Log struct {
	cfg kafka.Config
	// partitions is empty before the first Read.
	partitions map[int]*partition
}

type partition struct {
	// start is the oldest offset at the time of the first Read, next the first unread
	// offset.
	start, next int64
	// oldest is the time of the message at start; zero if there was none.
	oldest time.Time
}

// NewLog returns the log of a cluster. Read connects to it.
func NewLog(cfg kafka.Config) *Log { return &Log{cfg: cfg, partitions: map[int]*partition{}} }

// Read implements adminanalytics.ViewLog.
func (l *Log) Read(ctx context.Context, next func([]adminanalytics.ViewEvent) error) error {
	ends, err := l.offsets(ctx)
	if err != nil {
		return err
	}
	for id, end := range ends {
		if err := l.read(ctx, id, end, next); err != nil {
			return fmt.Errorf("read partition %d: %w", id, err)
		}
	}
	return nil
}

// Since implements adminanalytics.ViewLog. A partition that has lost its beginning
// is complete from its oldest message on. A partition with its beginning may belong
// to a topic that was created anew, so messages before its oldest one may be missing.
func (l *Log) Since() time.Time {
	var first, cut time.Time
	for _, p := range l.partitions {
		switch {
		case p.start > 0 && p.oldest.IsZero():
			// All messages were deleted, at an unknown time.
			return time.Now()
		case p.start > 0 && p.oldest.After(cut):
			cut = p.oldest
		case p.start == 0 && !p.oldest.IsZero() && (first.IsZero() || p.oldest.Before(first)):
			first = p.oldest
		}
	}
	if first.IsZero() && cut.IsZero() {
		return time.Now() // the topic is empty
	}
	if first.After(cut) {
		return first
	}
	return cut
}

// offsets returns the end of each partition and records the start of new ones. It
// repeats requests that fail with a temporary error, such as a partition without a
// leader, for up to leaderWait.
func (l *Log) offsets(ctx context.Context) (map[int]int64, error) {
	until := time.Now().Add(leaderWait)
	for {
		ends, err := l.askOffsets(ctx)
		if e, ok := errors.AsType[kafkago.Error](err); !ok || !e.Temporary() || time.Now().After(until) {
			return ends, err
		}
		if !loop.Wait(ctx, leaderPause) {
			return nil, ctx.Err()
		}
	}
}

// askOffsets is one attempt of offsets. Its client has no cached leaders.
func (l *Log) askOffsets(ctx context.Context) (map[int]int64, error) {
	transport := l.cfg.Transport("waitlist-rebuild")
	defer transport.CloseIdleConnections()
	client := &kafkago.Client{Addr: kafkago.TCP(l.cfg.Brokers...), Timeout: requestTimeout, Transport: transport}
	topic := l.topic()
	md, err := client.Metadata(ctx, &kafkago.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, fmt.Errorf("read topic: %w", err)
	}
	ends := map[int]int64{}
	for _, t := range md.Topics {
		if t.Error != nil {
			return nil, fmt.Errorf("read topic %s: %w", t.Name, t.Error)
		}
		var ask []kafkago.OffsetRequest
		for _, p := range t.Partitions {
			ask = append(ask, kafkago.FirstOffsetOf(p.ID), kafkago.LastOffsetOf(p.ID))
		}
		res, err := client.ListOffsets(ctx, &kafkago.ListOffsetsRequest{Topics: map[string][]kafkago.OffsetRequest{topic: ask}})
		if err != nil {
			return nil, fmt.Errorf("list offsets: %w", err)
		}
		for _, p := range res.Topics[topic] {
			if p.Error != nil {
				return nil, fmt.Errorf("list offsets of partition %d: %w", p.Partition, p.Error)
			}
			ends[p.Partition] = p.LastOffset
			if l.partitions[p.Partition] == nil {
				l.partitions[p.Partition] = &partition{start: p.FirstOffset, next: p.FirstOffset}
			}
		}
	}
	return ends, nil
}

func (l *Log) topic() string { return l.cfg.TopicPrefix + kafka.SignupsTopic }

// read reads one partition up to end, exclusive.
func (l *Log) read(ctx context.Context, id int, end int64, next func([]adminanalytics.ViewEvent) error) (err error) {
	p := l.partitions[id]
	if p.next >= end {
		return nil
	}
	r := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers: l.cfg.Brokers, Topic: l.topic(), Partition: id,
		Dialer:   l.cfg.Dialer("waitlist-rebuild"),
		MinBytes: 1, MaxBytes: maxBytes, MaxWait: time.Second,
	})
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.SetOffset(p.next); err != nil {
		return fmt.Errorf("seek: %w", err)
	}
	var events []adminanalytics.ViewEvent
	for p.next < end {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		if p.oldest.IsZero() {
			p.oldest = m.Time
		}
		p.next = m.Offset + 1
		var ev eventv1.Event
		if err := proto.Unmarshal(m.Value, &ev); err != nil {
			continue // the consumer has put it on the dead-letter topic
		}
		if v := ev.GetPageViewsCounted(); v != nil {
			events = append(events, adminanalytics.ViewEvent{
				ID: ev.GetId(), WaitlistID: v.GetWaitlistId(), Day: adminanalytics.DayOf(ev.GetOccurredAt().AsTime()), Views: v.GetViews(),
			})
		}
		if len(events) == piece {
			if err := next(events); err != nil {
				return err
			}
			events = events[:0]
		}
	}
	return next(events)
}
