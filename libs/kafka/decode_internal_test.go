package kafka

import (
	"testing"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"

	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// FuzzDecode: a payload is an event with an id, or an error; what is taken survives being sent again.
func FuzzDecode(f *testing.F) {
	good, err := proto.Marshal(&eventv1.Event{Id: uuid.NewString()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("\n\x01x"))
	f.Add([]byte("\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d := delivery{msg: kafka.Message{Value: raw}}
		if d.decode() != nil {
			return
		}
		if d.id.String() == "" || d.event == nil {
			t.Fatalf("took %x", raw)
		}
		again, err := proto.Marshal(d.event)
		if err != nil {
			t.Fatal(err)
		}
		e := delivery{msg: kafka.Message{Value: again}}
		if err := e.decode(); err != nil || e.id != d.id || !proto.Equal(d.event, e.event) {
			t.Fatalf("%x is %v, sent again %v: %v", raw, d.event, e.event, err)
		}
	})
}
