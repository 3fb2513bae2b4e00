// The official Go client of RocketMQ 5: grpc_peer ENDPOINT tls|plain SCENARIO,… TOPIC GROUP COUNT; what the scenarios
// do is in tests/support/grpc_scenarios.py. The client reads from the environment whether it speaks TLS.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	client "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const awaitDuration = 5 * time.Second

var (
	endpoint, topicPrefix, groupPrefix string
	count                              int
	output                             sync.Mutex
)

type fields map[string]any

type scenario struct {
	name, topic, group string
	done               sync.Once
}

func (s *scenario) say(event string, more fields) {
	line := fields{"scenario": s.name, "event": event, "at": time.Now().UnixMilli()}
	for name, value := range more {
		line[name] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

func (s *scenario) sayDone() { s.done.Do(func() { s.say("done", nil) }) }

func (s *scenario) sayGot(view *client.MessageView) {
	s.say("got", fields{
		"id": view.GetMessageId(), "body": string(view.GetBody()), "attempt": view.GetDeliveryAttempt(),
		"topic": view.GetTopic(), "tag": view.GetTag(), "keys": view.GetKeys(), "group": view.GetMessageGroup(),
		"properties": view.GetProperties(),
	})
}

func (s *scenario) config() *client.Config {
	return &client.Config{Endpoint: endpoint, ConsumerGroup: s.group, Credentials: &credentials.SessionCredentials{AccessKey: os.Getenv("PEER_ACCESS_KEY"), AccessSecret: os.Getenv("PEER_SECRET_KEY")}}
}

func numberOf(body string) int {
	number, err := strconv.Atoi(body[strings.LastIndex(body, "-")+1:])
	check(err)
	return number
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func (s *scenario) run() {
	defer func() {
		if cause := recover(); cause != nil {
			s.say("failed", fields{"error": fmt.Sprint(cause)})
		}
	}()
	switch s.name {
	case "send-normal", "send-fifo", "send-delay", "recall":
		s.send()
	case "send-refused":
		s.sendRefused()
	case "send-transaction":
		s.sendTransactions()
	case "simple-receive-ack":
		s.receiveAndAck()
	case "simple-change-invisible":
		s.changeInvisible()
	case "filter-tag", "filter-sql":
		s.filter()
	case "simple-fifo":
		s.receiveInOrder()
	default:
		s.push()
	}
	s.sayDone()
}

func (s *scenario) producer(options ...client.ProducerOption) client.Producer {
	producer, err := client.NewProducer(s.config(), append(options, client.WithTopics(s.topic))...)
	check(err)
	check(producer.Start())
	return producer
}

func (s *scenario) sendOne(producer client.Producer, message *client.Message) *client.SendReceipt {
	receipts, err := producer.Send(context.Background(), message)
	check(err)
	return receipts[0]
}

func (s *scenario) send() {
	producer := s.producer()
	for number := 0; number < count; number++ {
		body := fmt.Sprintf("%s-%d", s.name, number)
		message := &client.Message{Topic: s.topic, Body: []byte(body)}
		var due int64
		switch s.name {
		case "send-normal":
			message.SetTag([]string{"TagA", "TagB"}[number%2])
			message.SetKeys(fmt.Sprintf("key-%d", number), fmt.Sprintf("other-%d", number))
			message.AddProperty("number", strconv.Itoa(number))
			message.AddProperty("text", "Grüße 你好")
		case "send-fifo":
			message.SetMessageGroup(fmt.Sprintf("group-%d", number%2))
		default:
			delay := 3 * time.Second
			if s.name == "recall" {
				delay = 8 * time.Second
			}
			at := time.Now().Add(delay)
			due = at.UnixMilli()
			message.SetDelayTimestamp(at)
		}
		receipt := s.sendOne(producer, message)
		s.say("sent", fields{"id": receipt.MessageID, "body": body, "due": due})
		if s.name == "recall" && number%2 == 1 {
			id, err := producer.Recall(context.Background(), s.topic, receipt.RecallHandle)
			check(err)
			s.say("recalled", fields{"id": id, "body": body})
		}
	}
	check(producer.GracefulStop())
}

func (s *scenario) sendRefused() {
	producer := s.producer()
	delayed := &client.Message{Topic: s.topic, Body: []byte("delayed")}
	delayed.SetDelayTimestamp(time.Now().Add(3 * time.Second))
	if _, err := producer.Send(context.Background(), delayed); err != nil {
		s.say("refused", fields{"error": err.Error()})
	} else {
		s.say("sent", fields{"body": "delayed"})
	}
	receipt := s.sendOne(producer, &client.Message{Topic: s.topic, Body: []byte("plain")})
	s.say("sent", fields{"id": receipt.MessageID, "body": "plain"})
	check(producer.GracefulStop())
}

func (s *scenario) sendTransactions() {
	open := sync.Map{}
	missing := 0
	for number := 2; number < count; number += 3 {
		open.Store(fmt.Sprintf("unknown-%d", number), true)
		missing++
	}
	asked := make(chan bool, 1000)
	checker := &client.TransactionChecker{Check: func(view *client.MessageView) client.TransactionResolution {
		body := string(view.GetBody())
		commits := strings.HasPrefix(body, "commit") ||
			strings.HasPrefix(body, "unknown") && numberOf(body)%2 == 0
		resolution, name := client.ROLLBACK, "ROLLBACK"
		if commits {
			resolution, name = client.COMMIT, "COMMIT"
		}
		s.say("checked", fields{"id": view.GetMessageId(), "body": body, "resolution": name})
		if _, found := open.LoadAndDelete(body); found {
			asked <- true
		}
		return resolution
	}}
	producer := s.producer(client.WithTransactionChecker(checker))
	for number := 0; number < count; number++ {
		how := []string{"commit", "rollback", "unknown"}[number%3]
		body := fmt.Sprintf("%s-%d", how, number)
		message := &client.Message{Topic: s.topic, Body: []byte(body)}
		message.SetKeys(fmt.Sprintf("key-%d", number))
		transaction := producer.BeginTransaction()
		receipts, err := producer.SendWithTransaction(context.Background(), message, transaction)
		check(err)
		s.say("sent", fields{"id": receipts[0].MessageID, "body": body})
		switch how {
		case "commit":
			check(transaction.Commit())
		case "rollback":
			check(transaction.RollBack())
		}
	}
	for ; missing > 0; missing-- {
		select {
		case <-asked:
		case <-time.After(time.Minute):
			panic(fmt.Sprintf("not asked about %d", missing))
		}
	}
	s.sayDone()
	time.Sleep(20 * time.Second) // the last answer is on its way, and the broker may ask again
	check(producer.GracefulStop())
}

func (s *scenario) simpleConsumer(expression *client.FilterExpression) client.SimpleConsumer {
	consumer, err := client.NewSimpleConsumer(
		s.config(),
		client.WithSimpleAwaitDuration(awaitDuration),
		client.WithSimpleSubscriptionExpressions(map[string]*client.FilterExpression{s.topic: expression}),
	)
	check(err)
	check(consumer.Start())
	return consumer
}

// An error is printed and counts as no messages, as an application would do: that there are none is one, too.
func (s *scenario) receive(consumer client.SimpleConsumer, most int32, invisible time.Duration) []*client.MessageView {
	s.say("asked", nil)
	views, err := consumer.Receive(context.Background(), most, invisible)
	if err != nil {
		s.say("again", fields{"error": err.Error()})
		time.Sleep(200 * time.Millisecond)
		return nil
	}
	return views
}

func (s *scenario) ack(consumer client.SimpleConsumer, view *client.MessageView) {
	check(consumer.Ack(context.Background(), view))
}

func (s *scenario) receiveAndAck() {
	consumer := s.simpleConsumer(client.SUB_ALL)
	for got := 0; got < count+1; {
		for _, view := range s.receive(consumer, 10, 30*time.Second) {
			got++
			s.sayGot(view)
			if numberOf(string(view.GetBody())) > 0 || view.GetDeliveryAttempt() > 1 {
				s.ack(consumer, view)
			}
		}
	}
	for _, view := range s.receive(consumer, 10, 30*time.Second) {
		s.sayGot(view)
	}
	check(consumer.GracefulStop())
}

func (s *scenario) changeInvisible() {
	consumer := s.simpleConsumer(client.SUB_ALL)
	for got := 0; got < 2*count; {
		for _, view := range s.receive(consumer, 10, 300*time.Second) {
			got++
			s.sayGot(view)
			if view.GetDeliveryAttempt() == 1 {
				check(consumer.ChangeInvisibleDuration(view, 2*time.Second))
			} else {
				s.ack(consumer, view)
			}
		}
	}
	check(consumer.GracefulStop())
}

func (s *scenario) filter() {
	expression, expected := client.NewFilterExpression("TagA || TagB"), count-count/3
	if s.name == "filter-sql" {
		expression = client.NewFilterExpressionWithType("number >= 3 AND color = 'red'", client.SQL92)
		expected = (count - 3) / 2
	}
	consumer := s.simpleConsumer(expression)
	for got := 0; got < expected; {
		for _, view := range s.receive(consumer, 10, time.Minute) {
			got++
			s.sayGot(view)
			s.ack(consumer, view)
		}
	}
	for _, view := range s.receive(consumer, 10, time.Minute) {
		s.sayGot(view)
	}
	check(consumer.GracefulStop())
}

func (s *scenario) receiveInOrder() {
	consumer := s.simpleConsumer(client.SUB_ALL)
	acknowledge := func(view *client.MessageView) {
		s.say("acked", fields{"body": string(view.GetBody())}) // before it is: what comes next comes later
		s.ack(consumer, view)
	}
	var held *client.MessageView
	later := 0
	for got := 0; got < count || held != nil; {
		for _, view := range s.receive(consumer, 1, time.Minute) {
			s.sayGot(view)
			if got == 0 {
				held = view
			} else {
				acknowledge(view)
			}
			got++
		}
		if held != nil {
			if later == 3 {
				acknowledge(held)
				held = nil
			}
			later++
		}
	}
	check(consumer.GracefulStop())
}

func (s *scenario) push() {
	many, dies := s.name == "push-consume", strings.HasSuffix(s.name, "-dead")
	missing := count + 1
	if many {
		missing = count + count/2
	}
	seen := sync.Map{}
	deliveries := make(chan bool, 1000)
	listener := &client.FuncMessageListener{Consume: func(view *client.MessageView) client.ConsumerResult {
		s.sayGot(view)
		deliveries <- true
		number := numberOf(string(view.GetBody()))
		_, again := seen.LoadOrStore(number, true)
		chosen := number == 2
		if many {
			chosen = number%2 == 1
		}
		if chosen && (dies || !again) {
			return client.FAILURE
		}
		return client.SUCCESS
	}}
	consumer, err := client.NewPushConsumer(
		s.config(),
		client.WithPushAwaitDuration(awaitDuration),
		client.WithPushSubscriptionExpressions(map[string]*client.FilterExpression{s.topic: client.SUB_ALL}),
		client.WithPushMessageListener(listener),
	)
	check(err)
	check(consumer.Start())
	for ; missing > 0; missing-- {
		select {
		case <-deliveries:
		case <-time.After(90 * time.Second):
			panic(fmt.Sprintf("%d deliveries are missing", missing))
		}
	}
	time.Sleep(2 * time.Second) // what comes too much
	s.sayDone()                 // to close takes as long as a poll
	if dies {
		time.Sleep(20 * time.Second) // the server makes the dead letter when it is asked for more
	}
	check(consumer.GracefulStop())
}

func main() {
	client.ResetLogger()
	endpoint, topicPrefix, groupPrefix = os.Args[1], os.Args[4], os.Args[5]
	var err error
	count, err = strconv.Atoi(os.Args[6])
	check(err)
	var all sync.WaitGroup
	for _, name := range strings.Split(os.Args[3], ",") {
		one := &scenario{name: name, topic: topicPrefix + "-" + name, group: groupPrefix + "-" + name}
		all.Add(1)
		go func() {
			defer all.Done()
			one.run()
		}()
	}
	all.Wait()
}
