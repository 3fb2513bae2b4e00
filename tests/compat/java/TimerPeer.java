import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Messages with a time of delivery: TimerPeer NAMESRV TOPIC MS… sends one message for each delay to queue 0, and recalls those that end with "!". It
 *  prints SENT with body and handle, RECALLED with the id. By reflection: releases before 5.0 have none of this, and compile this file, too. */
public class TimerPeer {
    public static void main(String[] args) {
        try {
            DefaultMQProducer producer = new DefaultMQProducer("java-timers", Peer.credentials());
            producer.setNamesrvAddr(args[0]);
            producer.start();
            for (int i = 2; i < args.length; i++) {
                long delay = Long.parseLong(args[i].replace("!", ""));
                Message message = new Message(args[1], "TagT", "key-" + delay, args[i].getBytes(StandardCharsets.UTF_8));
                Message.class.getMethod("setDelayTimeMs", long.class).invoke(message, delay);
                SendResult result = producer.send(message, (queues, ignored, number) -> queues.get(0), null);
                String handle = (String) SendResult.class.getMethod("getRecallHandle").invoke(result);
                System.out.println("SENT\t" + args[i] + "\t" + handle);
                if (args[i].endsWith("!")) {
                    System.out.println("RECALLED\t" + DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                        .invoke(producer, args[1], handle));
                }
            }
            producer.shutdown();
            System.out.flush();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(3); // the client's own threads would keep the process alive
        }
        System.exit(0);
    }
}
