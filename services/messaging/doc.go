// Package messaging names the service; its rooms are the packages below it. None imports one
// that stands below it in this list; depguard says which of the others it may:
//
//   - templates: owners' texts for mails, and their placeholders.
//   - domains: the domains that owners send from, and how they prove and sign them.
//   - mails: what one mail is and may count towards; how the mails and text messages that events
//     ask for are decided upon, composed and sent.
//   - blasts: the mails to everybody on a waitlist.
//   - providers: what mails and text messages leave through, and the look-up of DNS records.
//   - postgres: the SQL behind the stores that the rooms above name.
//   - http, grpc, kafka: what comes in; grpc also asks account and signup. app wires all of them.
//
// The tests here run mails and blasts together on real servers.
package messaging

// Name is the service's name in identities, logs and metrics, and the name of its
// schema and consumer group.
const Name = "messaging"
