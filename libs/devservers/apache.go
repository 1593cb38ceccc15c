package devservers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	// kafkaVersion is the Apache Kafka that kafka-pom.xml resolves.
	kafkaVersion = "4.1.1"
	// clusterID is any 16 bytes in base64url without padding.
	clusterID = "d2FpdGxpc3QtZGV2LTAwMQ"
	// resolveTimeout bounds Maven, apacheStart a broker's start, which takes
	// some seconds of processor time for the JVM.
	resolveTimeout = 15 * time.Minute
	apacheStart    = 2 * time.Minute
)

//go:embed kafka-pom.xml
var kafkaPOM []byte

// ApacheOptions says what StartApacheKafka starts.
type ApacheOptions struct {
	// Dir holds the broker's log and configuration; it is made when missing.
	Dir string
	// Dist is the folder that keeps the broker's jars between runs.
	Dist string
	// Port on 127.0.0.1; 0 takes a free one. The controller takes another.
	Port int
}

// StartApacheKafka starts a real Kafka: one node that is broker and controller.
// It needs java (17 or newer) and, the first time, mvn with access to Maven
// Central. ctx bounds the start alone.
func StartApacheKafka(ctx context.Context, o ApacheOptions) (*Kafka, error) {
	java, err := javaPath()
	if err != nil {
		return nil, err
	}
	libs, err := kafkaDist(ctx, o.Dist)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", o.Dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the Kafka directory: %w", err)
	}
	pidFile := filepath.Join(dir, "kafka.pid")
	if err := stopOrphan(pidFile, dir, syscall.SIGTERM, syscall.SIGKILL); err != nil {
		return nil, err
	}
	port := o.Port
	if port == 0 {
		if port, err = FreePort(); err != nil {
			return nil, err
		}
	}
	controller, err := FreePort()
	if err != nil {
		return nil, err
	}
	for name, content := range map[string]string{
		"server.properties": kafkaProperties(dir, port, controller),
		"log4j2.properties": kafkaLogging,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return nil, fmt.Errorf("configure Kafka: %w", err)
		}
	}
	jvm := func(heap, class string, args ...string) *exec.Cmd {
		cmd := exec.Command(java, append([]string{
			"-Xms64m", "-Xmx" + heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			"-Dlog4j2.configurationFile=file:" + filepath.Join(dir, "log4j2.properties"),
			"-cp", filepath.Join(libs, "*"), class,
		}, args...)...)
		cmd.Dir = dir
		return cmd
	}
	ctx, cancel := context.WithTimeout(ctx, apacheStart)
	defer cancel()
	format := jvm("128m", "kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", clusterID, "-c", "server.properties")
	if out, err := format.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("format Kafka's storage: %w\n%s", err, out)
	}
	cmd := jvm("512m", "kafka.Kafka", "server.properties")
	cmd.SysProcAttr = childAttr(syscall.SIGTERM)
	c, err := startChild("kafka", cmd, filepath.Join(dir, "kafka.log"))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		c.kill()
		return nil, fmt.Errorf("write Kafka's pid file: %w", err)
	}
	addr := "127.0.0.1:" + strconv.Itoa(port)
	if err := c.ready(ctx, func(ctx context.Context) error { return brokerReady(ctx, addr) }); err != nil {
		c.kill()
		return nil, err
	}
	return &Kafka{Brokers: []string{addr}, stop: func() error { return c.stop(syscall.SIGTERM) }, kill: c.kill}, nil
}

// brokerReady passes when the broker is registered with its controller.
func brokerReady(ctx context.Context, addr string) error {
	transport := new(kafka.Transport)
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	meta, err := (&kafka.Client{Addr: kafka.TCP(addr), Transport: transport}).Metadata(ctx, new(kafka.MetadataRequest))
	if err != nil {
		return err
	}
	if len(meta.Brokers) == 0 {
		return errors.New("no broker is registered yet")
	}
	return nil
}

// FetchApacheKafka downloads the broker's jars to dist unless they are there, so that a
// start needs no network.
func FetchApacheKafka(ctx context.Context, dist string) error {
	_, err := kafkaDist(ctx, dist)
	return err
}

// kafkaDist returns the folder with Kafka's jars, which Maven resolves once. The folder
// appears whole or not at all.
func kafkaDist(ctx context.Context, dist string) (string, error) {
	dist, err := filepath.Abs(dist)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", dist, err)
	}
	libs := filepath.Join(dist, kafkaVersion)
	if _, err := os.Stat(libs); err == nil {
		return libs, nil
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", errors.New("no mvn found, which resolves Apache Kafka's jars: install it (Debian, Ubuntu: apt-get install maven)")
	}
	if err := os.MkdirAll(dist, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of Kafka's jars: %w", err)
	}
	work, err := os.MkdirTemp(dist, "resolve-")
	if err != nil {
		return "", fmt.Errorf("make a folder for Maven: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }() // leftovers only waste space
	pom, half := filepath.Join(work, "pom.xml"), filepath.Join(work, "libs")
	if err := os.WriteFile(pom, kafkaPOM, 0o600); err != nil {
		return "", fmt.Errorf("write Kafka's pom.xml: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	// Try three times: a download may fail for a moment.
	for try := 1; ; try++ {
		cmd := exec.CommandContext(ctx, mvn, "-B", "-q", "-C", "-f", pom, "dependency:copy-dependencies", "-DoutputDirectory="+half)
		out, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		if try == 3 || ctx.Err() != nil {
			return "", fmt.Errorf("resolve Kafka's jars with mvn: %w\n%s", err, out)
		}
	}
	if err := os.Rename(half, libs); err != nil && !errors.Is(err, os.ErrExist) && !strings.Contains(err.Error(), "not empty") {
		return "", fmt.Errorf("put Kafka's jars in their place: %w", err)
	}
	return libs, nil
}

// javaPath returns JAVA_HOME's java, or else the one on PATH.
func javaPath() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return filepath.Join(home, "bin", "java"), nil
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return "", errors.New("no Java found: install version 17 or newer for Apache Kafka (Debian: apt-get install openjdk-17-jre-headless)")
	}
	return java, nil
}

func kafkaProperties(dir string, port, controller int) string {
	return fmt.Sprintf(`process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:%[2]d
listeners=PLAINTEXT://127.0.0.1:%[1]d,CONTROLLER://127.0.0.1:%[2]d
advertised.listeners=PLAINTEXT://127.0.0.1:%[1]d
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=%[3]s
num.partitions=6
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.segment.bytes=16777216
log.index.size.max.bytes=1048576
`, port, controller, filepath.Join(dir, "log"))
}

const kafkaLogging = `rootLogger.level=WARN
rootLogger.appenderRefs=stdout
rootLogger.appenderRef.stdout.ref=STDOUT
appenders=stdout
appender.stdout.type=Console
appender.stdout.name=STDOUT
appender.stdout.layout.type=PatternLayout
appender.stdout.layout.pattern=[%d] %p %m (%c)%n
`
