package kafka

import kafkago "github.com/segmentio/kafka-go"

// HeaderTraceparent carries the W3C trace context of a message's cause.
const HeaderTraceparent = "traceparent"

// The headers that a dead letter has in addition to those of the original.
const (
	// HeaderConsumer is the group that failed.
	HeaderConsumer  = "dlq-consumer"
	HeaderReason    = "dlq-reason"
	HeaderError     = "dlq-error"
	HeaderTopic     = "dlq-topic"
	HeaderPartition = "dlq-partition"
	HeaderOffset    = "dlq-offset"
	// HeaderAttempt counts how often the message was dead-lettered, from 1.
	HeaderAttempt = "dlq-attempt"
	// HeaderReplayFor names the one group that a replayed message is for.
	HeaderReplayFor = "replay-for"
)

func header(m kafkago.Message, key string) string {
	for _, h := range m.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}
