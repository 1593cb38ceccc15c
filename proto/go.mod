module waitlist.internal/proto

go 1.26.0

require (
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require gopkg.in/yaml.v3 v3.0.1 // indirect
