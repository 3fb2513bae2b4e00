// The official Go client as a program that does what it is told: a line of standard input is a request, its words separated by tabs.
// Answers are lines, too: SENT, READ, VALUE, then DONE or FAILED. What running consumers get comes in between, as GOT with the consumer's name.
// tests/compat/java/ClientPeer.java is the same program around the Java client.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var (
	output     sync.Mutex
	nameServer string
	instances  int
	consumers  = map[string]rocketmq.PushConsumer{}
)

func say(words ...any) {
	text := make([]string, len(words))
	for i, word := range words {
		text[i] = fmt.Sprint(word)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(strings.Join(text, "\t"))
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

// A client of its own for each use: clients with one name share connections, and the end of one is the end of all.
func instance() string {
	instances++
	return fmt.Sprintf("go-%d-%d", os.Getpid(), instances)
}

func credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: os.Getenv("PEER_ACCESS_KEY"), SecretKey: os.Getenv("PEER_SECRET_KEY")}
}

func main() {
	rlog.SetLogLevel("fatal")
	nameServer = os.Args[1]
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := do(strings.Split(lines.Text(), "\t")); err != nil {
			say("FAILED", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			say("DONE")
		}
	}
}

func do(words []string) (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("panic: %v", problem)
		}
	}()
	switch words[0] {
	case "send":
		return send(words[1], words[2], number(words[3]), words[4], words[5])
	case "push":
		return push(words[1:])
	case "stop":
		return consumers[words[1]].Shutdown()
	case "pull":
		return pull(words[1], words[2], words[3], number(words[4]), number(words[5]), number(words[6]), number(words[7]))
	case "create":
		return create(words[1], words[2])
	case "transact":
		return transact(words[1], words[2], words[3], words[4])
	case "request":
		return request(words[1], words[2], number(words[3]))
	case "replier":
		return replier(words[1], words[2], words[3])
	}
	return errors.New("unknown: " + words[0])
}

func sent(result *primitive.SendResult) {
	status := "SEND_OK"
	if result.Status != primitive.SendOK {
		status = fmt.Sprint(result.Status)
	}
	say("SENT", status, result.MsgID, result.OffsetMsgID, result.MessageQueue.BrokerName, result.MessageQueue.QueueId, result.QueueOffset)
}

func traces() *primitive.TraceConfig {
	return &primitive.TraceConfig{Access: primitive.Local, Resolver: primitive.NewPassthroughResolver([]string{nameServer}), Credentials: credentials()}
}

type oneQueue struct{ id int }

func (o oneQueue) Select(_ *primitive.Message, queues []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	for _, queue := range queues {
		if queue.QueueId == o.id {
			return queue
		}
	}
	return nil
}

// mode: sync, async, oneway, batch, key (argument: how many keys), queue (its number), delay (the level), property (NAME=VALUE), traced, retrying, large.
func send(topic, mode string, count int, tag, argument string) error {
	options := []producer.Option{
		producer.WithNameServer([]string{nameServer}), producer.WithGroupName("peer-producer"), producer.WithInstanceName(instance()),
		producer.WithRetry(0), producer.WithCredentials(credentials()),
	}
	switch mode {
	case "key":
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	case "queue":
		options = append(options, producer.WithQueueSelector(oneQueue{number(argument)}))
	case "traced":
		options = append(options, producer.WithTrace(traces()))
	case "retrying":
		options = append(options, producer.WithRetry(5)) // it takes the queues in turn, and a broker has four
	}
	p, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	if err = p.Start(); err != nil {
		return err
	}
	defer p.Shutdown()
	answers := make(chan error, count)
	var batch []*primitive.Message
	for i := 0; i < count; i++ {
		body := fmt.Sprintf("body-%d", i)
		if mode == "large" {
			body += "-" + strings.Repeat("0123456789", 900)
		}
		message := primitive.NewMessage(topic, []byte(body)).WithTag(tag).WithKeys([]string{fmt.Sprintf("key-%d", i)})
		message.WithProperty("number", strconv.Itoa(i))
		if mode == "key" {
			message.WithShardingKey(fmt.Sprintf("k%d", i%number(argument)))
		}
		if mode == "delay" {
			message.WithDelayTimeLevel(number(argument))
		}
		if mode == "property" {
			name, value, _ := strings.Cut(argument, "=")
			message.WithProperty(name, value)
		}
		switch mode {
		case "batch":
			batch = append(batch, message)
		case "oneway":
			err = p.SendOneWay(context.Background(), message)
		case "async":
			err = p.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
				if err == nil {
					sent(result)
				}
				answers <- err
			}, message)
		default:
			var result *primitive.SendResult
			if result, err = p.SendSync(context.Background(), message); err == nil {
				sent(result)
			}
		}
		if err != nil {
			return err
		}
	}
	if mode == "batch" {
		result, err := p.SendSync(context.Background(), batch...)
		if err != nil {
			return err
		}
		sent(result)
	}
	for i := 0; mode == "async" && i < count; i++ {
		select {
		case err := <-answers:
			if err != nil {
				return err
			}
		case <-time.After(30 * time.Second):
			return errors.New("sends were not answered")
		}
	}
	if mode == "oneway" {
		time.Sleep(200 * time.Millisecond) // nobody tells when they have left
	}
	return nil
}

func fields(message *primitive.MessageExt, size int) []any {
	return []any{message.Queue.QueueId, message.QueueOffset, message.ReconsumeTimes, message.GetTags(), message.GetKeys(), message.MsgId, size, string(message.Body)}
}

// Words: name, topic, group, expression, mode (concurrent, orderly, broadcasting, traced, AVG, AVG_BY_CIRCLE), from (first, last, yyyyMMddHHmmss), size of batches, maximum of reconsume times.
func push(words []string) error {
	name, topic, mode, from := words[0], words[1], words[4], words[5]
	options := []consumer.Option{
		consumer.WithNameServer([]string{nameServer}), consumer.WithGroupName(words[2]), consumer.WithInstance(instance()),
		consumer.WithConsumeMessageBatchMaxSize(number(words[6])), consumer.WithMaxReconsumeTimes(int32(number(words[7]))),
		consumer.WithConsumerOrder(mode == "orderly"), consumer.WithCredentials(credentials()),
	}
	if mode == "broadcasting" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if mode == "traced" {
		options = append(options, consumer.WithTrace(traces()))
	}
	if mode == "AVG_BY_CIRCLE" {
		options = append(options, consumer.WithStrategy(consumer.AllocateByAveragelyCircle))
	}
	switch from {
	case "first":
		options = append(options, consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	case "last":
		options = append(options, consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset))
	default:
		options = append(options, consumer.WithConsumeFromWhere(consumer.ConsumeFromTimestamp), consumer.WithConsumeTimestamp(from))
	}
	c, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: words[3]}
	err = c.Subscribe(topic, selector, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		for _, message := range messages {
			say(append([]any{"GOT", name}, fields(message, len(messages))...)...)
			body := string(message.Body)
			if strings.HasPrefix(body, "dead") || strings.HasPrefix(body, "again") && message.ReconsumeTimes == 0 {
				result = consumer.ConsumeRetryLater
			}
		}
		if result == consumer.ConsumeRetryLater {
			if context, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				context.DelayLevelWhenNextConsume = 1
			}
		}
		return result, nil
	})
	if err != nil {
		return err
	}
	if err = c.Start(); err != nil {
		return err
	}
	consumers[name] = c
	return nil
}

// Pull from a queue at an offset, store an offset with the broker, and say what is stored.
func pull(topic, group, broker string, queueId, offset, count, commit int) error {
	options := []consumer.Option{consumer.WithNameServer([]string{nameServer}), consumer.WithGroupName(group), consumer.WithInstance(instance()), consumer.WithCredentials(credentials())}
	c, err := rocketmq.NewPullConsumer(options...)
	if err != nil {
		return err
	}
	if err = c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}); err != nil {
		return err
	}
	if err = c.Start(); err != nil {
		return err
	}
	defer c.Shutdown()
	queue := &primitive.MessageQueue{Topic: topic, BrokerName: broker, QueueId: queueId}
	// Offsets are forgotten when a queue becomes ours, and what is polled tells that it has.
	for end := time.Now().Add(40 * time.Second); ; {
		request, err := c.Poll(context.Background(), time.Second)
		if err == nil && request.GetMQ().QueueId == queueId {
			break
		}
		if time.Now().After(end) {
			return errors.New("the queue did not become ours")
		}
	}
	result, err := c.PullFrom(context.Background(), queue, int64(offset), count)
	if err != nil {
		return err
	}
	for _, message := range result.GetMessageExts() {
		say(append([]any{"READ"}, fields(message, 1)...)...)
	}
	say("VALUE", result.Status, result.NextBeginOffset, result.MinOffset, result.MaxOffset)
	if err = c.UpdateOffset(queue, int64(commit)); err != nil {
		return err
	}
	return c.PersistOffset(context.Background(), topic)
}

func create(topic, broker string) error {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{nameServer})))
	if err != nil {
		return err
	}
	defer a.Close()
	if err = a.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker), admin.WithReadQueueNums(3), admin.WithWriteQueueNums(3)); err != nil {
		return err
	}
	list, err := a.FetchAllTopicList(context.Background())
	if err != nil {
		return err
	}
	for _, known := range list.TopicList {
		if known == topic {
			say("VALUE", topic)
		}
	}
	return nil
}
